kubectl set resources --namespace=shop deployment/web --containers=app --requests=cpu=350m,memory=512Mi --limits=memory=512Mi
# the workload is guessed from pod names: kubectl set resources --namespace=a-namespace-with-a-long-name rollout/a-workload-with-a-name-that-is-much-longer-than-a-table-has-room-for --containers='="x",y' --requests=cpu=25m
kubectl set resources --namespace=shop deployment/web --containers='<b>' --requests=memory=250Mi
