export * from "../../../ravi_django/static/ravi/ravi-client.js"; // a site copies the file
