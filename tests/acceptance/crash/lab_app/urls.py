"""The demo's own pages need the demo's own app, which the laboratory is without."""

from django.contrib import admin
from django.urls import include, path

urlpatterns = [path("admin/", admin.site.urls), path("ravi/", include("ravi_django.urls"))]
