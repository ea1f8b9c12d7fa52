from django.contrib import admin
from django.contrib.auth.views import LoginView, LogoutView
from django.urls import include, path
from django.views.generic import RedirectView

from project.feed_page import FeedItemsView, FeedView, PreferencesView
from project.views import KillWorkerView

urlpatterns = [
    path("", RedirectView.as_view(url="/ravi/ui/chat/?agent=react/assistant"), name="chat"),
    path("feed/", FeedView.as_view(), name="feed"),
    path("feed/items/", FeedItemsView.as_view(), name="feed-items"),
    path("feed/preferences/", PreferencesView.as_view(), name="feed-preferences"),
    path("accounts/login/", LoginView.as_view(redirect_authenticated_user=True), name="login"),
    path("accounts/logout/", LogoutView.as_view(), name="logout"),
    path("demo/kill-worker/", KillWorkerView.as_view(), name="kill-worker"),
    path("admin/", admin.site.urls),
    path("ravi/", include("ravi_django.urls")),
]
