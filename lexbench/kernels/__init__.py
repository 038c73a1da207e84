"""Exact attention, likelihoods and attention statistics, in bounded memory."""
