"""Access control: which requests the server accepts.

    access.py           @requires, which declares the scope on each route
    access_control.py   the ASGI layer: origins, keys and sessions, security headers
    origins.py          Host, Origin and Sec-Fetch-Site: protection against other web pages
    keyholders.py       the key or session of a request; limits on wrong keys
    login.py            the login form

API keys are in `serving/keys.py`. docs/security.md explains which attack each part prevents.
"""
