"""Hide packages from a process, as if they were not installed."""

from importlib.machinery import PathFinder


def hide(*packages: str) -> None:
    """Make the packages impossible to find; call it before they are imported."""
    original = PathFinder.find_spec

    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in packages else original(name, path, target)

    PathFinder.find_spec = find_spec
