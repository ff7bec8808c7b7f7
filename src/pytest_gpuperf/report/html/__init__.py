"""Room html: a run as one page that a browser opens without a network.

In: runs with their verdicts, the last one to be shown, older ones beside it.
Out: one HTML file: style, figures and script inside, foreign text escaped.
Never: a decision, a sentence that another report has, a library of others in the page.
"""
