"""What the page's tabs are built of, where Gradio has nothing that fits.

    widget      Widget: a gr.HTML whose script draws the value; no build step
    drawing     the picture on which a person draws a box or clicks a point
    tiles       a wall of pictures that the browser loads from REST
    raw_image   an image input that hands over the file as it came
    download    a file that the browser saves
    address     the part of the page's address that says what it shows

Each has its script beside it. docs/decisions/0010-page.md says why.
"""

import gradio.component_meta

# Gradio writes a stub beside the source of every component that is defined: ours is no place to write to
gradio.component_meta.create_or_modify_pyi = lambda component_class, class_name, events: None
