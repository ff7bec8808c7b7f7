"""Student's t, and the derivatives of the logarithm of gamma.

In plain `math`: the library that has them takes 0.2 s to load, which is more than all the
judging of a suite of a thousand tests. Degrees of freedom and probabilities repeat from
test to test, so that quantiles are kept.

With a = dof / 2, x = dof / (dof + t^2) and y = 1 - x the tail beyond t > 0 is

    P(T > t) = I_x(a, 1/2) / 2 = 1/2 - I_y(1/2, a) / 2

The right side is a series of positive terms, for a t near the middle; the left side is one,
too, where x is small, and a continued fraction elsewhere: these have the relative accuracy
of the tail.

References:
    Abramowitz and Stegun 1964, Handbook of Mathematical Functions, 6.3 and 6.4 (digamma
    and polygamma), 6.1.47 (ratio of gammas), 26.5 (incomplete beta), 26.7 (Student's t).
    Didonato and Morris 1992, ACM Trans. Math. Softw. 18 360, section 3, for the continued
    fraction.
"""

from __future__ import annotations

import math
from functools import lru_cache
from statistics import NormalDist

__all__ = ["cumulative", "digamma", "quantile", "tetragamma", "trigamma"]

_SHIFTED = 12.0  # from here on the asymptotic series below are within 1e-12
_ULP = 2.0**-53  # a term of this share of the sum before it ends a sum
_MOST_TERMS = 10_000  # none of them takes more than some hundred
_HALF = 0.5  # a series in what is less shrinks by half with each term
_MIDDLE = 9.0  # t^2 up to which the inner series needs few terms and loses no tail
_LARGE = 1e8  # of its square 1 is not a part
_NORMAL = 1e15  # from here on it is the normal distribution, to the last digit
_LARGEST = 690.0  # logarithm of what is still far from the largest float
_MOST_STEPS = 100  # Newton needs fewer than 20
_CONVERGED = 1e-14


def cumulative(dof: float, t: float) -> float:
    """
    Return the probability that Student's t is at most t.

    Args:
        dof: Degrees of freedom, from 1e-300 on; they need not be whole, and may be
            infinite.

        t: Any number, infinite too; what is not a number has no probability either.

    Returns:
        From 0 to 1; of the smaller side the relative error is below 2e-12, at dof up to
        1e6.

    Example:
        >>> round(cumulative(1.0, 1.0), 12)
        0.75
    """
    if math.isnan(t):
        return t
    if dof > _NORMAL:
        return NormalDist().cdf(t)
    return _tail(dof, -t) if t < 0 else 1.0 - _tail(dof, t)


@lru_cache(maxsize=4096)  # a suite has few, and asks for each test
def quantile(dof: float, probability: float) -> float:
    """
    Return the t that Student's t does not exceed with a probability.

    Args:
        dof: Degrees of freedom, from 1e-300 on; they need not be whole, and may be
            infinite.

        probability: Above 0 and below 1.

    Returns:
        With a relative error below 1e-12 / min(dof, 1), at dof up to 1e6, where the
        probability is not within 0.001 of the half; infinite where a float cannot hold
        it, as for hundredths of a degree of freedom.

    Example:
        >>> round(quantile(3.0, 0.995), 4)
        5.8409
    """
    if probability == _HALF:
        return 0.0
    if dof > _NORMAL:
        return NormalDist().inv_cdf(probability)
    sign = 1.0 if probability > _HALF else -1.0
    share = 1.0 - probability if probability > _HALF else probability
    far = share <= _tail(dof, 1.0)
    return sign * (_outer(dof, share) if far else _inner(dof, share))


def digamma(x: float) -> float:
    """Return the derivative of ln gamma at x > 0."""
    below = 0.0
    while x < _SHIFTED:
        below += 1.0 / x
        x += 1.0
    z = 1.0 / (x * x)
    series = z * (1 / 12 - z * (1 / 120 - z * (1 / 252 - z * (1 / 240 - z / 132))))
    return math.log(x) - 0.5 / x - series - below


def trigamma(x: float) -> float:
    """Return the second derivative of ln gamma at x > 0."""
    below = 0.0
    while x < _SHIFTED:
        below += 1.0 / (x * x)
        x += 1.0
    z = 1.0 / (x * x)
    series = z * (1 / 6 - z * (1 / 30 - z * (1 / 42 - z * (1 / 30 - z * 5 / 66))))
    return (1.0 + 0.5 / x + series) / x + below


def tetragamma(x: float) -> float:
    """Return the third derivative of ln gamma at x > 0, which is negative."""
    below = 0.0
    while x < _SHIFTED:
        below += 2.0 / (x * x * x)
        x += 1.0
    z = 1.0 / (x * x)
    series = z * (1 / 2 - z * (1 / 6 - z * (1 / 6 - z * (3 / 10 - z * 5 / 6))))
    return -(1.0 + 1.0 / x + series) * z - below


def _tail(dof: float, t: float) -> float:
    """Return the probability of more than t >= 0."""
    if t == 0:
        return 0.5
    log_x, half = _log_x(dof, t), dof / 2
    x, y = math.exp(log_x), -math.expm1(log_x)
    power = math.exp(half * log_x) * _front(dof)
    if y > _HALF:
        return power / dof * _outer_series(half, x)
    if t * t <= _MIDDLE:
        return 0.5 - power * math.sqrt(y) * _inner_series(half, y)
    return power * math.sqrt(y) / 2 * _fraction(half, x, y)


def _log_x(dof: float, t: float) -> float:
    """Return ln(dof / (dof + t^2)), also where the square is not a float."""
    share = t / math.sqrt(dof)
    if share > _LARGE:
        return -2 * math.log(share)
    return -math.log1p(share * share)


@lru_cache(maxsize=4096)
def _front(dof: float) -> float:
    """Return gamma(dof / 2 + 1/2) / gamma(dof / 2) / sqrt(pi)."""
    z, share = dof / 2, 1.0
    while z < _SHIFTED:
        share *= z / (z + 0.5)
        z += 1.0
    w = 1.0 / (z * z)
    series = 1 / 8 - w * (1 / 192 - w * (1 / 640 - w * (17 / 14336 - w * 31 / 18432)))
    return share * math.sqrt(z / math.pi) * math.exp(-series / z)


def _inner_series(half: float, y: float) -> float:
    """Return 1 + (a + 1/2) / (3/2) y + (a + 1/2)(a + 3/2) / (3/2)(5/2) y^2 + ..."""
    total = term = 1.0
    for n in range(_MOST_TERMS):
        term *= (half + 0.5 + n) / (1.5 + n) * y
        total += term
        if term < total * _ULP:
            break
    return total


def _outer_series(half: float, x: float) -> float:
    """Return 1 + (1/2) a / (a + 1) x + (1/2)(3/2) / 2! a / (a + 2) x^2 + ..."""
    total = term = 1.0
    for n in range(1, _MOST_TERMS):
        term *= (n - 0.5) / n * x
        total += term * half / (half + n)
        if term < total * _ULP:
            break
    return total


def _fraction(half: float, x: float, y: float) -> float:
    """Return the continued fraction of I_x(a, 1/2), over x^a y^(1/2) / B(a, 1/2)."""
    beyond = 1.0 + (half + 0.5) * y - 0.5
    first = 1.0 + 1.0 / half
    a, a_before, b, b_before = 1.0, 0.0, beyond / first, 1.0
    value = a / b
    for n in range(1, _MOST_TERMS):
        weight = n * (0.5 - n) * x
        middle = half + 2 * n - 1
        share = (half + n - 1) * (half + n - 0.5) / (middle * middle)
        alpha = share * weight * x
        beta = n + weight / middle
        beta += (half + n) / (half + 2 * n + 1) * (beyond + n * (y + 1.0))
        a, a_before = alpha * a_before + beta * a, a
        b, b_before = alpha * b_before + beta * b, b
        previous, value = value, a / b
        if abs(value - previous) <= 4 * _ULP * value:
            break
        a_before, b_before, a, b = a_before / b, b_before / b, value, 1.0
    return value


def _log_density(dof: float, t: float) -> float:
    """Return the logarithm of the density of Student's t at t >= 0."""
    return math.log(_front(dof) / math.sqrt(dof)) + (dof + 1) / 2 * _log_x(dof, t)


def _inner(dof: float, share: float) -> float:
    """Return t below 1: Newton from the middle, which never goes beyond it."""
    t = 0.0
    for _ in range(_MOST_STEPS):
        step = (_tail(dof, t) - share) / math.exp(_log_density(dof, t))
        t += step
        if abs(step) <= _CONVERGED * t:
            break
    return t


def _outer(dof: float, share: float) -> float:
    """
    Return t from 1 on: Newton on logarithms, which comes from above.

    The logarithm of the tail is concave in that of t, and a line where t is large. It
    begins at the normal distribution's, which is never beyond it.
    """
    log_t = math.log(max(1.0, -NormalDist().inv_cdf(share)))
    for _ in range(_MOST_STEPS):
        t = math.exp(log_t)
        log_tail = math.log(_tail(dof, t))
        slope = math.exp(_log_density(dof, t) + log_t - log_tail)
        step = (log_tail - math.log(share)) / slope
        log_t += step
        if log_t > _LARGEST:
            return math.inf
        if abs(step) < _CONVERGED:
            break
    return math.exp(log_t)
