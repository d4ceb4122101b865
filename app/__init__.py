"""The web app (`web/`, served by `web_app`), the Gradio demo, its Space, and the demo's gallery of images."""
