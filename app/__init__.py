"""The page: a Gradio app on the workbench."""
