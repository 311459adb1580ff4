"""The OpenAPI document, served and rendered."""

from __future__ import annotations

from csp.decorators import csp_update
from django.contrib.auth.decorators import login_not_required
from django.utils.decorators import method_decorator
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView


class SchemaView(SpectacularAPIView):
    """GET /api/v1/schema: the document, as YAML or (?format=json) JSON."""

    authentication_classes = ()
    permission_classes = ()


# Swagger draws with data: images; its page alone may.
@method_decorator(csp_update({"img-src": ["data:"]}), name="dispatch")
class DocsView(SpectacularSwaggerSplitView):
    """GET /api/v1/docs: the document as pages, everything from here."""

    template_name = "api/docs.html"
    url_name = "schema"
    authentication_classes = ()
    permission_classes = ()


schema = login_not_required(SchemaView.as_view())
docs = login_not_required(DocsView.as_view())
