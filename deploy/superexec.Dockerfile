# Runs a ServerApp or a ClientApp of fedpriv: Flower's SuperExec and the app's dependencies.
# Build from the project's root: docker build -f deploy/superexec.Dockerfile -t fedpriv-superexec .
ARG FLWR_VERSION=1.42.0
FROM flwr/superexec:${FLWR_VERSION}

# Options for pip, for instance an index with CPU-only builds of torch.
ARG PIP_ARGS=""

USER app
# Made by the user, so that it may write to them: WORKDIR and volumes would make them root's.
RUN mkdir -p /tmp/fedpriv /app/runs /app/data

# Not in /app: the app that runs comes in Flower's bundle, and a copy in the working folder could shadow it.
WORKDIR /tmp/fedpriv
COPY --chown=app:app pyproject.toml constraints.txt README.md LICENSE CHANGELOG.md ./
COPY --chown=app:app fedpriv ./fedpriv

# Ray is for simulations only.
RUN sed -i 's/flwr\[simulation,dp\]/flwr[dp]/' pyproject.toml \
    && python -m pip install --no-cache-dir --constraint constraints.txt ${PIP_ARGS} . \
    && rm -rf /tmp/fedpriv/*

ENV MPLBACKEND=Agg
WORKDIR /app
ENTRYPOINT ["flower-superexec"]
