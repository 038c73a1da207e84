"""The small reference decoder, and how it is trained."""
