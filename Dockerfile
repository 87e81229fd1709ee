# syntax=docker/dockerfile:1
# CPU by default. For CUDA: docker build --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu130 .
ARG PYTHON=3.12
# the server whose pg_dump `expunge backup` runs: of its version or a newer one
ARG POSTGRES=postgres:16-bookworm
FROM python:${PYTHON}-slim-bookworm AS build
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ENV PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
WORKDIR /src
RUN python -m venv /opt/expunge
COPY requirements.lock requirements-dev.lock ./
RUN /opt/expunge/bin/pip install --extra-index-url "${TORCH_INDEX}" -r requirements.lock \
        "$(grep '^obstore==' requirements-dev.lock)" "$(grep '^anyascii==' requirements-dev.lock)"
COPY pyproject.toml setup.py README.md LICENSE ./
COPY client client
COPY connect connect
COPY examples examples
COPY expunge expunge
COPY unlearning unlearning
COPY service service
COPY workers workers
COPY migrations migrations
RUN /opt/expunge/bin/pip install --no-deps --no-build-isolation ./client ./connect .

FROM ${POSTGRES} AS postgres
# its clients with the libraries that a slim image lacks, all but those of libc
SHELL ["/bin/bash", "-o", "pipefail", "-c"]
RUN mkdir -p /client/bin /client/lib /client/programs \
    && cp /usr/lib/postgresql/*/bin/pg_dump /usr/lib/postgresql/*/bin/pg_restore /client/programs/ \
    && ldd /client/programs/* | grep -o '/[^ ]*[.]so[^ ]*' | grep -Ev '/(ld-linux|libc|libm|libresolv)[-.]' | sort -u \
        | xargs cp -L -t /client/lib \
    && for name in pg_dump pg_restore; do \
        printf '#!/bin/sh\nexec env LD_LIBRARY_PATH=/opt/postgresql/lib /opt/postgresql/programs/%s "$@"\n' "$name" \
            > "/client/bin/$name"; done \
    && chmod 0755 /client/bin/*

FROM python:${PYTHON}-slim-bookworm
RUN useradd --uid 10001 --create-home --home-dir /var/lib/expunge --shell /usr/sbin/nologin expunge \
    && install -d -o expunge -g expunge -m 0700 /var/lib/expunge/store /var/lib/expunge/private \
        /var/lib/expunge/keys /var/lib/expunge/spool
COPY --from=build /opt/expunge /opt/expunge
COPY --from=postgres /client /opt/postgresql
COPY examples /opt/recipes
ENV PATH=/opt/expunge/bin:/opt/postgresql/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    EXPUNGE_MODE=production \
    EXPUNGE_HOME=/var/lib/expunge \
    EXPUNGE_LISTEN=0.0.0.0:8750 \
    EXPUNGE_RECIPES=/opt/recipes
USER 10001
WORKDIR /var/lib/expunge
EXPOSE 8750
ENTRYPOINT ["expunge"]
CMD ["run", "api"]
