"""What this wing registers."""

from ravi_django.wing import Wing

WING = Wing(name="protocols", urls={"other protocols": "urls.routes"})
