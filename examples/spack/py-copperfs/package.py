# A recipe for Spack: spack repo create site; put the directory py-copperfs into site/packages (from
# Spack 1.0 on it is called py_copperfs there); then spack install py-copperfs. Not tried with Spack
# itself; a test compares it with pyproject.toml.
from spack.package import *


class PyCopperfs(PythonPackage):
    """A read-only, cooperative view of a shared filesystem: read once for the whole job."""

    homepage = "https://example.org/copperfs"  # where your site keeps it
    url = "file:///path/to/copperfs-0.1.0.tar.gz"  # made by: python -m build --sdist

    license("Apache-2.0")
    version("0.1.0")  # checksum: spack checksum --keep-stage, or sha256sum of that file

    variant("mpi", default=False, description="Let mpiexec and srun launch copperfs mount")

    variant("erasure", default=True, description="Code chunks of the data tier by ISA-L")

    depends_on("c", type="build")
    depends_on("python@3.11:", type=("build", "link", "run"))
    depends_on("py-setuptools@77:", type="build")
    depends_on("pkgconfig", type="build")
    depends_on("libfuse@3.10:", type=("build", "link", "run"))
    # Loaded when it is used: Spack's compilers write its directory into the extension.
    depends_on("isa-l", type=("build", "link", "run"), when="+erasure")

    with default_args(type=("build", "run")):
        depends_on("py-pyfuse3@3.3:")
        depends_on("py-trio@0.24:")
        depends_on("py-rich@13:")
        depends_on("py-pyzmq@26:")
        depends_on("py-msgpack@1.0:")
        depends_on("py-xxhash@3.0:")
        depends_on("py-clustershell@1.9:")
        depends_on("py-mpi4py@4:", when="+mpi")
