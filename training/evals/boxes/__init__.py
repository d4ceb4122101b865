"""Images with boxes around what they show, and how well a map of an image finds them."""
