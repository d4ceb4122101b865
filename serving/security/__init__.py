"""Access control: which requests the server accepts.

    access_control.py   the ASGI layer that applies the others
    origins.py          Host, Origin and Sec-Fetch-Site: protection against other web pages; CORS
    access.py           @requires, which declares the scope on each route
    authentication.py   the key of a request; limits wrong keys by token_buckets.py
    session.py          signed-in browsers: a random cookie per session;  login.py the form
    headers.py          the security headers of every response

API keys are in `serving/keys.py`. docs/security.md explains which attack each part prevents.
"""
