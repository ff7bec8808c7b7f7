import time
from fakes.project import Project
def test_a(project: Project):
    t=time.time()
    for i in range(3):
        project.store(sessions=1); print("store", time.time()-t); t=time.time()
    project.run("--gpuperf-baseline=.gpuperf"); print("run", time.time()-t); t=time.time()
    project.set_values(b=1.2)
    project.run("--gpuperf-baseline=.gpuperf","--gpuperf-confirm=2"); print("confirm", time.time()-t); t=time.time()
    project.spawn("-q"); print("spawn", time.time()-t); t=time.time()
