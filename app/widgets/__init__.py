"""What the page's tabs are built of, where Gradio has nothing that fits.

    widget      Widget: a gr.HTML whose script draws the value; no build step
    drawing     the image on which a person draws a box or clicks a point
    tiles       a wall of images that the browser loads from REST
    raw_image   an image input that hands over the file as it came
    bounded_slider  a slider whose typed number is kept within its ends
    viewer      a window over the page, with images
    figures     maps over images, faded by a slider
    intake      takes images, folders and zips, in parts
    works       the jobs that a browser began, as they go on
    runs        pretraining runs, as they go on
    labeller    a wall of images that are labeled by clicking
    probe_report, verdict   how well a probe does, and what it says of an image
    code        code to copy
    download    a file that the browser saves
    address     the part of the page's address that says what it shows

Each but raw_image and bounded_slider has its script beside it. docs/decisions/0010-page.md says why.
"""

import gradio.component_meta

# Gradio writes a stub beside the source of every component that is defined: ours is no place to write to
gradio.component_meta.create_or_modify_pyi = lambda component_class, class_name, events: None
