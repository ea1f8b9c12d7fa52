"""What this wing registers."""

from ravi_django.wing import Wing

WING = Wing(name="guards")
