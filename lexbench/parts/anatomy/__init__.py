"""Part anatomy: the contributions of distance, neighbourhood, sink, filler and rivals to the loss of a far key."""
