"""Small tools without a layer of their own; anything may import them."""
