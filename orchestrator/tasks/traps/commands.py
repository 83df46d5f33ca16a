"""The commands that this check knows. What none of these lists holds may run what it reads."""

import re
from typing import Final

from orchestrator.tasks.traps.launch import LAUNCHERS
from orchestrator.tasks.traps.tree import listed

DATA: Final = listed(
    "[ test echo printf true false : cat tac nl head tail cut paste join comm sort uniq tr fold fmt expand unexpand column rev wc cmp diff "
    "diff3 sdiff md5sum sha1sum sha224sum sha256sum sha384sum sha512sum b2sum cksum sum crc32 base64 base32 basenc xxd od hexdump strings file "
    "stat ls dir du df tree readlink realpath basename dirname pwd cd pushd popd mkdir rmdir rm mv cp ln install touch chmod chown chgrp "
    "truncate dd shred mktemp mkfifo sync split csplit tee seq shuf date cal expr factor numfmt sleep usleep wait kill pkill killall ps pgrep "
    "pidof id whoami groups who hostname uname nproc free uptime printenv getent locale tput clear yes tsort gzip gunzip zcat bzip2 bunzip2 "
    "bzcat xz unxz xzcat zstd zstdcat lz4 zip rsync curl wget nc ncat netcat ss netstat ping ip dig host nslookup lsof fuser grep egrep fgrep "
    "zgrep rg sed awk gawk mawk nawk jq xmllint iconv dos2unix unix2dos find fd tar bsdtar cpio 7z 7za unar unzip zipinfo pdftotext pdfinfo "
    "exiftool identify ffprobe nm objdump readelf size which type set shift export unset readonly declare local typeset read mapfile readarray "
    "getopts return exit break continue trap ulimit umask hash alias shopt jobs fg bg disown let eval source . history times logger caller ruff "
    "black csvlook csvcut xsv getfacl lsattr ldconfig mount umount sha3sum rhash http.server json.tool py_compile compileall tokenize zipfile "
    "tarfile venv ensurepip isort shellcheck git hg deactivate uuidgen kotlinc"
)
"""They treat the agent's files as data; options and program texts with which they do more have rules of their own."""
NAMED: Final = listed(
    "apt apt-get apk yum dnf dpkg pip conda mamba service systemctl useradd adduser groupadd usermod userdel passwd docker podman kubectl "
    "redis-cli pg_ctl pg_isready createdb dropdb createuser mysqladmin nvm locale-gen update-alternatives a2ensite ssh-keygen openssl gpg "
    "crontab sysctl modprobe iptables supervisorctl aws gcloud mongosh rabbitmqctl hostnamectl timedatectl ufw loginctl journalctl"
)
"""Their operands are names, unless they are clearly paths."""
BLIND: Final = listed(
    "[ test echo printf true false : cat tac nl head tail cut paste column rev tr fold tee basename dirname pwd cd pushd popd mkdir rmdir rm mv cp "
    "ln install touch chmod chown chgrp mktemp mkfifo sync seq shuf date cal sleep usleep wait kill pkill killall ps id whoami hostname uname "
    "nproc printenv clear yes type which set shift export unset readonly declare local typeset return exit break continue trap ulimit umask hash "
    "alias shopt let history times venv ensurepip deactivate apt apt-get apk yum dnf dpkg pip conda mamba service systemctl useradd adduser "
    "groupadd usermod passwd nvm locale-gen update-alternatives sysctl hostnamectl timedatectl"
)
"""Those of both lists whose exit status says nothing of what a file or a service holds."""
TOOLS: Final = listed(
    "make gmake cmake ctest ninja meson bazel just npm npx yarn pnpm bun jest vitest mocha pytest py.test nosetests nose2 tox nox uv uvx poetry "
    "pipenv hatch pdm cargo go mvn mvnw gradle gradlew sbt ant rake bundle rspec composer phpunit mix dotnet swift stack cabal scons waf "
    "latexmk pre-commit eslint prettier tsc webpack vite rollup gunicorn uvicorn hypercorn flask django-admin celery streamlit jupyter alembic "
    "coverage mypy pylint flake8 pyright behave robot terraform tofu ansible-playbook vagrant packer pulumi docker-compose sphinx-build mkdocs "
    "hugo jekyll playwright cypress ava tap karma lerna nx turbo grunt gulp doit invoke fab snakemake nextflow dvc dbt luigi prove zig lein "
    "boot rebar3 dune opam nimble shards"
)
"""They run what their configuration in the work directory says."""
_SHELL: Final = ("c", "oO")
INTERPRETERS: Final[dict[str, tuple[str, str]]] = {
    **dict.fromkeys(("python", "pypy", "ipython", "micropython"), ("c", "XWQ")),
    **dict.fromkeys(("bash", "sh", "dash", "zsh", "ksh", "mksh", "ash", "fish", "rbash"), _SHELL),
    **dict.fromkeys(
        ("tclsh", "wish", "ocaml", "sbcl", "escript", "runghc", "runhaskell", "bats", "gforth", "clisp", "mono", "wine", "wasmtime", "jshell",
         "at", "batch", "php-cgi", "java", "swipl", "pwsh"),
        ("", ""),
    ),
    **dict.fromkeys(("julia", "racket", "lua", "luajit", "groovy", "elixir", "tsx", "ts-node", "raku", "Rscript"), ("eE", "")),
    "node": ("ep", "rC"), "nodejs": ("ep", "rC"), "perl": ("eE", "I"), "ruby": ("e", "rICE"), "php": ("r", "dc"), "expect": ("c", ""),
    "guile": ("c", ""), "scala": ("e", ""),
}  # fmt: skip
"""Programs whose first operand, or whose input, is a program: the letters of options with a program as text, and of others with a value."""
SHELLS: Final = frozenset(
    {name for name, letters in INTERPRETERS.items() if letters is _SHELL} | {"at", "batch"}
)
READERS: Final = listed(
    "cat head tail cmp diff sed awk gawk mawk sort jq wc sha256sum sha1sum sha512sum md5sum tr cut grep egrep fgrep tac nl uniq paste join comm "
    "xxd od base64 rev"
)
PROGRAM_FIRST: Final = listed("grep egrep fgrep zgrep rg sed awk gawk mawk nawk jq tr")
"""Their first operand is a program or a pattern, unless an option gives it."""
CALCULATORS: Final = frozenset({"bc", "dc", "m4", "gnuplot", "octave", "maxima"})
"""Their files and their input are programs."""
CONSOLES: Final = frozenset({"sqlite3", "psql", "mysql", "mariadb", "duckdb", "ed", "ex", "vi", "vim", "gdb"})
"""Their input is a program, and their first file is data."""
_VERSION: Final = re.compile(r"[-.\d]+$")
KNOWN: Final = (
    DATA
    | NAMED
    | TOOLS
    | INTERPRETERS.keys()
    | CALCULATORS
    | CONSOLES
    | LAUNCHERS.keys()
    | {"su", "script", "watch"}
)


def known_as(name: str) -> str:
    """The name of a command in the lists above: without its directory and, without its version if it is not listed with it."""
    name = name.rpartition("/")[2]
    plain = _VERSION.sub("", name)
    return plain if name not in KNOWN and plain in KNOWN else name
