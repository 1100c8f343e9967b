# The lab in a container: one image for the dev container, Binder and JupyterHub on Kubernetes (docs/kubernetes.md).
#
#     docker build --tag allreduce-lab .
#     docker run --rm --shm-size=256m --publish 127.0.0.1:8888:8888 allreduce-lab
#
# Three layers of their own: the system's packages, the environment, and the lab. A change to a notebook or to the
# lab's code makes the last one anew; the environment changes only with requirements.lock.

FROM python:3.13-slim-trixie AS environment

# git and make: for the dev container. bubblewrap: the sandbox of grading. tini collects the processes that killed
# programs leave behind, which the first process of a container has to do.
# hadolint ignore=DL3008
RUN apt-get update \
 && apt-get install --yes --no-install-recommends bubblewrap git make tini \
 && rm -rf /var/lib/apt/lists/*

# Binder sets these two. JupyterHub on Kubernetes runs as user 1000, too, and puts the student's disk over the home
# folder: so nothing of the lab is in it.
ARG NB_USER=jovyan
ARG NB_UID=1000
ENV HOME=/home/${NB_USER} \
    LANG=C.UTF-8 \
    OMP_NUM_THREADS=1 \
    PIP_NO_CACHE_DIR=1 \
    UV_NO_CACHE=1
RUN useradd --create-home --home-dir "${HOME}" --uid "${NB_UID}" --shell /bin/bash "${NB_USER}" \
 && install --directory --owner="${NB_USER}" /opt/allreduce-lab /opt/allreduce-lab/clone
USER ${NB_UID}
WORKDIR /opt/allreduce-lab/clone

# All packages that the lab needs, in the versions of the lock.
COPY --chown=${NB_UID} requirements.lock ./
COPY --chown=${NB_UID} tools/make_env.py tools/
RUN python3 tools/make_env.py ../environment --packages-only

FROM environment AS lab

# The student's part of JupyterHub, in the version of the hub: of the chart in examples/kubernetes.yaml.
ARG JUPYTERHUB=5.5.0
RUN ../environment/bin/python -m pip install "jupyterhub==${JUPYTERHUB}"

COPY --chown=${NB_UID} . .
RUN python3 tools/make_env.py ../environment
ENV PATH=/opt/allreduce-lab/environment/bin:${PATH}

# Without a disk over the home folder (Binder, `docker run`), the notebooks are in it.
WORKDIR ${HOME}
RUN labkit lab --copy-only
EXPOSE 8888
ENTRYPOINT ["tini", "--"]
CMD ["jupyter", "lab", "--ip=0.0.0.0", "--no-browser", "--LabApp.default_url=/lab/tree/my-notebooks/00_meet_the_cluster.ipynb"]
