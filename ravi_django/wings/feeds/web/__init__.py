"""The pages and endpoints of feeds: the API, the admin, the doctor's findings."""
