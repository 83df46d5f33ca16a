"""The files of /etc that every sandbox has."""

from __future__ import annotations

from typing import Final

ETC_FILES: Final = {
    "passwd": "root:x:0:0::/:/usr/sbin/nologin\nagent:x:1000:1000::/home/agent:/bin/sh\n",
    "group": "root:x:0:\nagent:x:1000:\n",
    "hosts": "127.0.0.1 localhost sandbox\n",
    "nsswitch.conf": "passwd: files\ngroup: files\nhosts: files\n",
}
