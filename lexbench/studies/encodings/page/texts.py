"""What the page says whatever was measured."""

HEAD = """\
One small decoder, trained from nothing once for each positional encoding and seed, all else alike: the same weights at
the start, the same rows of text in the same order, the same number of steps. Then the same questions at lengths from a
fraction of the trained length to many times of it, without a method and under blockwise causal attention (`bca`), which
never lets a query see further back than the trained length. Everything below is made from `measured.parquet` and
`models.json` by `lexbench study` ({suite}).
"""
INTERVALS = """\
Brackets hold intervals of the mean over S seeds of about 95 %: the seeds' spread (Student's t of S - 1 degrees of
freedom) and the documents' (resampled; of answers that are right or wrong, Wilson's), added in squares. They are
approximate where seeds or documents are few. With one seed they are the documents' alone, and say nothing of another
training.
"""
LIMITS = """\
What a model of this size can say: how an encoding treats positions that it was never trained on, which is a matter of
the formula as much as of the size, and whether a window repairs it. What it cannot say: how much far context is worth,
which small models hardly use (compare NLL at the shortest length and at the trained one: the difference is all that
context gives), how encodings rank inside the trained length, where billions of tokens decide, and anything about an
encoding whose learned parts need more than these steps. A shape that agrees with a paper's is evidence for both; one
that does not may be the size, the text, the budget, or the paper.
"""
BESIDE = """\
Published perplexities are others', of models hundreds of times as large, each under its paper's protocol
(tables and sources: `results/published/README.md`); they are set beside ours by shape and order alone. Their changes
are logs of perplexity ratios, without intervals. *perhaps*: our interval reaches into their shape and into another one.
"""
ORDERS = """\
Every two rows of one published table and length, beyond the trained length: is the row with the lower perplexity the
one with the lower NLL in ours? *cannot be told*: our interval of the difference, paired by document, holds 0.
"""
RESOLUTION = """\
Scales differ by a constant factor that the paper does not state: only whether it rises or falls from the trained length
on is compared. *perhaps*: the interval of our change, paired by document, holds 0.
"""
