"""Fixed texts of the page."""

PAGE_INTRODUCTION = """\
One small decoder is trained from scratch for each positional encoding and seed. Training texts and their order, number
of steps and initial weights are the same, but for weights of the encoding. All models answer the same questions at
lengths from a fraction of the trained length to many times of it, without a method and with blockwise causal attention
(`bca`), which limits each query to a distance within the trained length. `lexbench study` ({study}) makes this page
from `measured.parquet` and `models.json`, and the figures and numbers of all curves in `plots/`. A repository may keep
only the figures that this page shows.
"""
FLOORS_TEXT = """\
Loss of held-out text at the end of the training, beside what counting n-grams of the same training texts reaches on
the same rows (Witten-Bell, each document counted once). Where a bigram beats a model, the model knows little that
context could change: read how its curve bends beyond the trained length, and not its level.
"""
LEARNED_TEXT = """\
What each model learnt within the trained length: its held-out loss below that of the trigram, over all positions of a
row (nats per token; the gate of the recipe asks for the last tokens of a text alone, which are easier); what the
second half of the trained length adds to `last_segment` (nats per token, positive: context helps); copies and passkeys
that it finds at the trained length. A model at chance there says nothing about finding beyond it.
"""
PREDICTIONS_TEXT = """\
Predictions that were stated before the runs (`PREREGISTRATION.md`), each judged by a 95 % interval: *holds* if the
interval lies within the prediction, *fails* if it lies outside, else *uncertain*. Nothing is corrected for their
number.
"""
SAME_TARGETS_TEXT = """\
Shapes and orders of ours are those of `last_segment`, which has the same targets at every length. The papers' tables
give perplexities of texts read at each length. Where they cut a text into windows, a longer window has fewer targets at
its beginning, and the curve falls without a gain at any place: so a published curve that falls beside a flat one of
ours may differ by the protocol alone.
"""
INTERVALS_TEXT = """\
Brackets hold approximate 95 % intervals of the mean over S seeds: the spread of seeds (Student's t, S - 1 degrees of
freedom) and that of documents (bootstrap; Wilson for right or wrong answers), added in squares. They are rough with
few seeds or documents. With one seed they cover documents only, not another training.
"""
LIMITS_TEXT = """\
Models of this size show how an encoding handles positions it was not trained on, which depends on the formula as much
as on the size, and whether a window repairs it. They do not show how useful far context is (compare NLL at the
shortest and at the trained length: the difference is all that context gives); how encodings rank within the trained
length, which takes billions of tokens; or how an encoding does whose learned parts need more steps. A shape that
agrees with a paper's is evidence for both. One that disagrees may come from model size, text, training budget, or the
paper.
"""
PUBLISHED_TABLES_TEXT = """\
Published perplexities come from models hundreds of times larger, each with its paper's protocol (tables and sources:
`results/published/README.md`), so only shape and order are compared. Their changes are logs of perplexity ratios,
without intervals. *perhaps*: our interval covers their shape and another one. *no*: ours changes with the opposite
sign, and its interval excludes 0. *other size*: another shape without that, as a threshold between shapes is crossed.
"""
PUBLISHED_ORDERS_TEXT = """\
For every two rows of one published table, at one length beyond the trained length: does the row with the lower
perplexity have the lower NLL in ours? *uncertain*: the interval of our difference, paired by document and by seed,
contains 0; a side of one seed is given the spread of the other's. Levels are compared, as in the tables; *at 1x, too*:
our models have this order at the trained length already, so it tells nothing about what follows. Several tables and
data sets stand beside one pair of our measurements, which counts once; *papers differ*: their orders do.
"""
RESOLUTION_TEXT = """\
The paper's scale differs by a constant factor that it does not state, so only the direction beyond the trained length
is compared. *perhaps*: the interval of our change, paired by document, contains 0.
"""
TOKEN_ACCURACY_TEXT = """\
Share of next tokens that are right (Su, kexue.fm, archives 9603 to 9859; his models have 100 million weights, and were
trained on 512 tokens of Chinese text): at the trained length, and beyond it in a passage of the trained length that is
repeated, or in other text. So only signs are compared: of the change beyond the trained length, and of the difference
between two rows of one table. Intervals are those of independent questions, wider than paired ones.
"""
