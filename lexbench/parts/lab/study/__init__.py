"""`lexbench study`: train models that differ only in their encoding, evaluate all alike, and write a page."""
