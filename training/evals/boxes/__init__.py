"""Images with boxes around objects, and how well maps of the images find them."""
