//! Discovery of Prometheus on a real API server.

use k8s_openapi::api::core::v1::{Service, ServicePort, ServiceSpec};
use kube::api::{Api, ObjectMeta, PostParams};

use super::recommend;
use crate::support::start_control_plane;

/// The Service has no pods, so that the API server finds it and has nowhere to send the queries.
#[tokio::test]
async fn the_service_of_prometheus_is_found_by_a_real_api_server_and_queried_through_it() {
    let cluster = start_control_plane().await;
    let kubeconfig = cluster.kubeconfig();
    let run = |more: &[&str]| {
        let kubeconfig = kubeconfig.to_str().expect("a path");
        recommend(&[&["--kubeconfig", kubeconfig], more].concat())
    };
    let none = run(&[]);
    assert!(
        none.code == 1 && none.err.contains("Looked for: app=kube-prometheus-stack-prometheus"),
        "{}",
        none.err
    );
    let wrong = run(&["--context", "nowhere"]);
    assert!(wrong.code == 1 && wrong.err.contains("nowhere"), "{}", wrong.err);

    let services: Api<Service> = Api::namespaced(cluster.client(), "default");
    let port = ServicePort { name: Some("http".into()), port: 80, ..ServicePort::default() };
    let service = Service {
        metadata: ObjectMeta {
            name: Some("prometheus-server".into()),
            labels: Some([("app".to_owned(), "prometheus-server".to_owned())].into()),
            ..ObjectMeta::default()
        },
        spec: Some(ServiceSpec {
            selector: Some([("app".to_owned(), "nobody".to_owned())].into()),
            ports: Some(vec![port]),
            ..ServiceSpec::default()
        }),
        ..Service::default()
    };
    services.create(&PostParams::default(), &service).await.expect("a Service");
    for more in [&[][..], &["--prometheus-service", "default/prometheus-server:http"]] {
        let ran = run(more);
        let expected = "Prometheus at Service default/prometheus-server answered ";
        assert!(ran.code == 1 && ran.err.contains(expected), "{}", ran.err);
        assert!(ran.err.contains("has no ready pod"), "{}", ran.err);
    }
}
