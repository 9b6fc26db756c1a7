"""A model hub for tests, on this machine: the API of the Hugging Face hub as far as foresay uses it, a file server at another
origin, and faults by rule. Standard library only.

    with Hub() as hub:
        hub.add("org/name", {"config.json": b"{}", "model.safetensors": data})
        hub.rule("model.safetensors", cut=1000, times=2)
        ... HF_ENDPOINT=hub.url ...
        hub.log   # what was asked for: dicts with server, path, range, token, status, sent

Files of more than LFS_BYTES lie on the file server behind a redirect and have a SHA-256; smaller ones have git's SHA-1.
"""
import functools
import hashlib
import http.server
import json
import re
import socket
import threading
import time
import urllib.parse

LFS_BYTES = 2000


@functools.lru_cache(maxsize=4096)
def sha256(data):
    return hashlib.sha256(data).hexdigest()


@functools.lru_cache(maxsize=4096)
def md5(data):
    return hashlib.md5(data).hexdigest()


@functools.lru_cache(maxsize=4096)
def git_sha1(data):
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


class Rule:
    """One fault. match: part of the path asked for; server: "hub", "files" or None for both; times: how often (None: always);
    skip: how many matching requests pass before. The rest says what happens:
    status, headers   answers with that status
    cut               closes the connection after so many bytes of body
    whole             ignores ranges
    etag              this entity tag, "new" a fresh one for every request
    flip              inverts the bit at this offset of the file
    stall             sends nothing for so many seconds, after the head
    pace              (bytes, seconds): pauses after so many bytes
    claim             Content-Length says so many bytes more (or fewer)
    surplus           so many bytes more than announced, without Content-Length
    location          redirects there
    shift             a range begins so many bytes later than asked
    encode            claims Content-Encoding gzip"""

    def __init__(self, match, server=None, times=None, skip=0, **what):
        self.match, self.server, self.times, self.skip, self.what = match, server, times, skip, what

    def applies(self, server, path):
        if self.match not in path or self.server not in (None, server):
            return False
        if self.skip > 0:
            self.skip -= 1
            return False
        if self.times is not None:
            if self.times <= 0:
                return False
            self.times -= 1
        return True


class Hub:
    def __init__(self):
        self.repos, self.rules, self.log = {}, [], []
        self.flow = 0            # bytes of content sent by the file server, roughly, while it goes on
        self.lock = threading.Lock()
        self.token = None        # demanded if set
        self.gated = set()       # repositories that refuse every token
        self.page = 1000         # entries of one page of the list
        self.tree_edit = None    # changes the list before it is sent
        self.files = self._serve("files")
        self.hub = self._serve("hub")
        self.url = "http://127.0.0.1:%d" % self.hub.server_address[1]
        self.files_url = "http://localhost:%d" % self.files.server_address[1]

    def _serve(self, name):
        hub = self

        class Server(http.server.ThreadingHTTPServer):
            daemon_threads = True
            request_queue_size = 128

            def handle_error(self, request, client_address):
                pass  # clients are killed on purpose

        class Bound(Handler):
            pass

        Bound.hub, Bound.name = hub, name
        server = Server(("127.0.0.1", 0), Bound)
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return server

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for server in (self.hub, self.files):
            server.shutdown()
            server.server_close()

    def add(self, repo, files, revision="main"):
        """A commit of a repository; it gets its own number. revision names it from now on."""
        commit = hashlib.sha1(repr((repo, sorted((k, hashlib.sha1(v).hexdigest()) for k, v in files.items()))).encode()).hexdigest()
        entry = self.repos.setdefault(repo, {"refs": {}, "commits": {}})
        entry["refs"][revision] = commit
        entry["commits"][commit] = dict(files)
        return commit

    def rule(self, match, **what):
        rule = Rule(match, **what)
        self.rules.append(rule)
        return rule

    def sent(self, part=""):
        """Bytes of bodies sent for paths that hold part."""
        with self.lock:
            return sum(x["sent"] for x in self.log if part in x["path"])

    def clear(self):
        with self.lock:
            self.log.clear()
            self.rules.clear()

    def tree(self, repo, commit):
        out = []
        for path, data in sorted(self.repos[repo]["commits"][commit].items()):
            entry = {"type": "file", "oid": git_sha1(data), "size": len(data), "path": path}
            if len(data) > LFS_BYTES:
                entry["lfs"] = {"oid": sha256(data), "size": len(data), "pointerSize": 134}
            out.append(entry)
        out.append({"type": "directory", "oid": "0" * 40, "size": 0, "path": "folder"})
        return self.tree_edit(out) if self.tree_edit else out


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = 0

    def setup(self):
        super().setup()
        self.connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def log_message(self, *_):
        pass

    def do_GET(self):
        hub = self.hub
        self.entry = {"server": self.name, "path": urllib.parse.unquote(self.path), "range": self.headers.get("Range"), "status": 0, "sent": 0,
                      "token": self.headers.get("Authorization"), "host": self.headers.get("Host")}
        with hub.lock:
            hub.log.append(self.entry)
            self.what = {}
            for rule in hub.rules:
                if rule.applies(self.name, self.entry["path"]):
                    self.what = {**self.what, **rule.what}
        try:
            if "location" in self.what:
                self.answer(302, b"", {"Location": self.what["location"]})
            elif "status" in self.what:
                self.answer(self.what["status"], b'{"error":"by rule"}', self.what.get("headers", {}))
            elif self.name == "files":
                self.serve_blob()
            else:
                self.serve_hub()
        except (ConnectionError, BrokenPipeError, socket.timeout):
            self.close_connection = True

    # ---- answers ----

    def answer(self, status, body, headers=()):
        self.entry["status"] = status
        self.send_response(status)
        for key, value in dict(headers).items():
            self.send_header(key, value)
        if "surplus" in self.what:
            body += b" " * self.what["surplus"]
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.entry["sent"] += len(body)

    def refuse(self, status, code):
        self.answer(status, json.dumps({"error": code}).encode(), {"X-Error-Code": code, "X-Error-Message": code})

    def serve_hub(self):
        url = urllib.parse.urlsplit(self.path)
        api = re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/(.+)", url.path)
        resolve = re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", url.path)
        if not api and not resolve:
            self.refuse(404, "NotFound")
            return
        repo = (api or resolve)[1]
        wanted = urllib.parse.unquote(api[3] if api else resolve[2])
        known = self.hub.repos.get(repo)
        if self.hub.token and self.entry["token"] != "Bearer " + self.hub.token:
            self.refuse(401, "RepoNotFound")
        elif not known:
            self.refuse(404 if self.entry["token"] else 401, "RepoNotFound")
        elif (commit := known["refs"].get(wanted, wanted)) not in known["commits"]:
            self.refuse(404, "RevisionNotFound")
        elif api and api[2] == "revision":
            self.answer(200, json.dumps({"id": repo, "sha": commit, "gated": False, "siblings": []}).encode())
        elif api:
            self.serve_tree(repo, commit, urllib.parse.parse_qs(url.query))
        elif repo in self.hub.gated:
            self.refuse(403, "GatedRepo")
        else:
            self.serve_file(repo, commit, urllib.parse.unquote(resolve[3]))

    def serve_tree(self, repo, commit, query):
        entries, at = self.hub.tree(repo, commit), int(query.get("cursor", ["0"])[0])
        headers = {}
        if not isinstance(entries, list):
            return self.answer(200, json.dumps(entries).encode())
        if at + self.hub.page < len(entries):
            headers["Link"] = f'<{self.hub.url}/api/models/{repo}/tree/{commit}?recursive=true&cursor={at + self.hub.page}>; rel="next"'
        self.answer(200, json.dumps(entries[at:at + self.hub.page]).encode(), headers)

    def serve_file(self, repo, commit, path):
        data = self.hub.repos[repo]["commits"][commit].get(path)
        if data is None:
            self.refuse(404, "EntryNotFound")
        elif len(data) > LFS_BYTES:
            sha = sha256(data)
            self.answer(302, b"Found", {"Location": f"{self.hub.files_url}/{repo}/{commit}/{urllib.parse.quote(path)}?signature=secret",
                                        "X-Linked-Etag": f'"{sha}"', "X-Linked-Size": str(len(data)), "X-Repo-Commit": commit})
        else:
            self.send_content(data, git_sha1(data))

    def serve_blob(self):
        parts = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)[1:].split("/", 3)
        repo = "/".join(parts[:2])
        data = self.hub.repos.get(repo, {"commits": {}})["commits"].get(parts[2] if len(parts) > 3 else "", {}).get(parts[-1])
        if data is None:
            self.refuse(404, "NoSuchKey")
        else:
            self.send_content(data, md5(data))

    def send_content(self, data, etag):
        what, wanted = self.what, re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
        if "flip" in what:
            data = bytearray(data)
            data[what["flip"] % len(data)] ^= 1
        tag = what.get("etag", etag)
        headers = {"ETag": '"%s"' % (f"{time.monotonic_ns()}" if tag == "new" else tag), "Accept-Ranges": "bytes"}
        status, body = 200, bytes(data)
        if wanted and int(wanted[1]) >= len(data):
            self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        if wanted and not what.get("whole"):
            first, last = int(wanted[1]) + what.get("shift", 0), min(int(wanted[2]), len(data) - 1)
            status, body = 206, bytes(data[first:last + 1])
            headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        if what.get("encode"):
            headers["Content-Encoding"] = "gzip"
        self.entry["status"] = status
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if "surplus" in what:
            body += b"\xaa" * what["surplus"]
            self.close_connection = True
        else:
            self.send_header("Content-Length", str(len(body) + what.get("claim", 0)))
        self.end_headers()
        self.send_body(body)

    def send_body(self, body):
        what = self.what
        time.sleep(what.get("stall", 0))
        step, pause = what.get("pace", (65536, 0))
        end = min(len(body), what.get("cut", len(body)))
        for at in range(0, end, step):
            piece = body[at:min(at + step, end)]
            self.wfile.write(piece)
            self.entry["sent"] += len(piece)
            if self.name == "files":
                self.hub.flow += len(piece)
            if pause:
                time.sleep(pause)
        if "cut" in what or what.get("claim", 0):
            self.close_connection = True
            try:
                self.connection.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
