"""The web page at /ui, built with Gradio: search, attention, collections, probes, training runs, API calls."""
