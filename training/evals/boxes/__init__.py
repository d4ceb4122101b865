"""Pictures with boxes around what they show, and how well a map of a picture finds them."""
