"""Access control: which requests the server accepts.

    access.py           @requires, which declares the scope on each route
    access_control.py   the ASGI layer: keys, sessions and limits on wrong keys; security headers
    origins.py          Host, Origin and Sec-Fetch-Site: protection against other web pages
    login.py            the login form

API keys are in `serving/keys.py`. docs/security.md explains which attack each part prevents.
"""
