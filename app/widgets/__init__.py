"""Components that Gradio lacks; docs/decisions/0010-page.md gives the reasons.

    widget        Widget: a gr.HTML whose script draws its value, without a build step
    drawing       an image on which the user drags a box or clicks a point
    tiles         a grid of images that the browser loads from REST
    labeler       a grid of images that the user labels by clicking
    uploader      uploads images, folders and zips in parts
    probe_report  how accurate a probe is
    outputs       small widgets that show a value: code, figures, jobs, runs, a viewer, ...
    inputs        Gradio inputs that return files as they were uploaded, and a slider that clamps its value

Each widget's script has the name of the widget and is in this folder.
"""

import gradio.component_meta

# Gradio writes a stub next to the source of every component; this package may be read-only
gradio.component_meta.create_or_modify_pyi = lambda component_class, class_name, events: None
