"""Access control: which requests the server accepts.

    access_control.py   the ASGI layer that applies the others, and adds security headers
    origins.py          Host, Origin and Sec-Fetch-Site: protection against other web pages; CORS
    access.py           @requires, which declares the scope on each route
    authentication.py   the key or session of a request; limits on wrong keys
    login.py            the login form

API keys are in `serving/keys.py`. docs/security.md explains which attack each part prevents.
"""
