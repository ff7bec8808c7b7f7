"""Foreign names and units into ours.

In: what a tool printed, in its own words and units.
Out: names of the catalogue, SI units, None for what the tool did not say.
Never: a decision, a number that no tool gave.
"""
