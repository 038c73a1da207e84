"""Kinds of layers by transformers' names (`layer_types` of a config): which have attention, and which see a window."""


def has_attention(kind: str) -> bool:
    """Whether layers of this kind have attention: recurrent and convolutional ones have none."""
    return kind != "linear_attention" and ("attention" in kind or "hybrid" in kind)


def is_windowed(kind: str) -> bool:
    """Whether layers of this kind see a window of the keys only: a sliding one, or their own chunk."""
    return is_chunked(kind) or any(word in kind for word in ("sliding", "local"))


def is_chunked(kind: str) -> bool:
    """Whether layers of this kind see the keys of their own chunk only."""
    return "chunked" in kind
