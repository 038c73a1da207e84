"""`lexbench trace`: curves of a training's checkpoints, where a length falls, which checkpoint to take."""
