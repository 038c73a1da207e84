"""`lexbench tune`: search space, successive halving, the bench that measures candidates, ranking, page."""
