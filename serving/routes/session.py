"""GET /api/v1/session: what the caller may do here, for pages that hide what would be refused."""

from __future__ import annotations

from fastapi import APIRouter, Request
from pydantic import BaseModel, Field

from nnclr_hub.images.folder import image_suffixes
from nnclr_hub.workbench.source_folders import SourceFolders

from ..keys import READ, WRITE
from ..problems import answers
from ..security.access import requires
from .dependencies import AppSettings, AppWorkbench


class SessionResponse(BaseModel):
    key: str | None = Field(description="name of the caller's key; null on a server without keys")
    can_write: bool
    read_only: bool = Field(description="whether the server refuses every write, whatever the key")
    max_images: int = Field(description="most images in one request")
    max_bytes: int = Field(description="largest body of a request")
    image_suffixes: list[str] = Field(description="names of the image files that can be added end in one of these")
    source_folders: list[str] = Field(description="names of the folders of the server that it may add; not paths")
    originals_bytes: int = Field(description="bytes of original files that may be kept; 0: originals are not kept")
    originals_used: int = Field(description="bytes of the original files that are kept")


router = APIRouter(prefix="/api/v1/session", tags=["health"])


@router.get("", responses=answers())
@requires(READ)
def session(request: Request, settings: AppSettings, bench: AppWorkbench) -> SessionResponse:
    """Describe what the caller may do: the name and the scopes of its key, and the limits of a request."""
    return SessionResponse(
        key=request.user.display_name if settings.has_keys else None,
        can_write=WRITE in request.auth.scopes and not bench.read_only,
        read_only=bench.read_only,
        max_images=settings.max_images,
        max_bytes=settings.max_bytes,
        image_suffixes=sorted(image_suffixes()),
        source_folders=SourceFolders(settings.source_folders).names,
        originals_bytes=bench.originals.most_bytes if bench.originals else 0,
        originals_used=bench.originals.used if bench.originals else 0,
    )
