//! An etcd for tests, and a cluster of them for people.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

const HOW_TO_GET_IT: &str = "the tests need an etcd of 3.4 or later, and there is none. On Debian \
    or Ubuntu: apt-get install etcd-server (as root, `cargo xtask etcd-install` does it). \
    Elsewhere: put a release of etcd on the PATH";

/// Clients of member `i` connect to this port plus `i`; members talk on ports 10 above.
const FIRST_PORT: u16 = 23_791;

fn find() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .chain(["/usr/bin".into(), "/usr/local/bin".into()])
        .map(|directory| directory.join("etcd"))
        .find(|candidate| candidate.is_file())
}

/// Installs etcd where that is ours to do: as root on a Debian.
pub(crate) fn ensure() -> Result<(), String> {
    if find().is_some() {
        return Ok(());
    }
    if !is_root() || !Path::new("/etc/debian_version").exists() {
        return Err(HOW_TO_GET_IT.into());
    }
    println!("== no etcd here: apt-get install etcd-server");
    for arguments in [
        &["update", "-q"][..],
        &[
            "install",
            "-q",
            "-y",
            "--no-install-recommends",
            "etcd-server",
        ],
    ] {
        let status = Command::new("apt-get")
            .args(arguments)
            .env("DEBIAN_FRONTEND", "noninteractive")
            .status();
        if !status.is_ok_and(|status| status.success()) {
            return Err(format!("apt-get {} failed. {HOW_TO_GET_IT}", arguments[0]));
        }
    }
    find().map(|_| ()).ok_or_else(|| HOW_TO_GET_IT.into())
}

fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|answer| answer.stdout.trim_ascii() == b"0")
}

/// Runs a cluster on this host until Ctrl-C, on an empty directory under `target`.
pub(crate) fn cluster(members: u16) -> Result<(), String> {
    ensure()?;
    let binary = find().ok_or(HOW_TO_GET_IT)?;
    let place = Path::new(env!("CARGO_MANIFEST_DIR"))
        .with_file_name("target")
        .join("etcd");
    let clients: Vec<u16> = (0..members).map(|i| FIRST_PORT + i).collect();
    for port in clients.iter().flat_map(|port| [*port, *port + 10]) {
        TcpListener::bind(("127.0.0.1", port))
            .map_err(|error| format!("port {port}: {error}; is a cluster running already?"))?;
    }
    // The cluster of last time is over: its members are not ours any more.
    if place.exists() {
        fs::remove_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    }
    fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;

    let url = |port: u16| format!("http://127.0.0.1:{port}");
    let all: Vec<String> = clients
        .iter()
        .map(|port| format!("m{port}={}", url(port + 10)))
        .collect();
    let mut running = Vec::new();
    for port in &clients {
        running.push(start(&binary, &place, *port, &all.join(","))?);
    }
    println!("== {members} members, data and logs in {}", place.display());
    for (port, child) in clients.iter().zip(&running) {
        println!("   {}  process {}", url(*port), child.id());
    }
    let endpoints: Vec<String> = clients.iter().map(|port| url(*port)).collect();
    println!("   endpoints: {}", endpoints.join(","));
    println!("== Ctrl-C ends them (it reaches them as well)");
    // A member may be killed for a trial; the command ends with the last one.
    while !running.is_empty() {
        running.retain_mut(|child| match child.try_wait() {
            Ok(None) => true,
            Ok(Some(status)) => {
                println!("   process {} ended: {status}", child.id());
                false
            }
            Err(_) => false,
        });
        sleep(Duration::from_millis(300));
    }
    Ok(())
}

fn start(binary: &Path, place: &Path, port: u16, all: &str) -> Result<Child, String> {
    let name = format!("m{port}");
    let (client, peer) = (
        format!("http://127.0.0.1:{port}"),
        format!("http://127.0.0.1:{}", port + 10),
    );
    let log = fs::File::create(place.join(format!("{name}.log"))).map_err(|e| e.to_string())?;
    Command::new(binary)
        .args(["--name", &name, "--logger", "zap", "--data-dir"])
        .arg(place.join(&name))
        .args(["--listen-client-urls", &client])
        .args(["--advertise-client-urls", &client])
        .args(["--listen-peer-urls", &peer])
        .args(["--initial-advertise-peer-urls", &peer])
        .args(["--initial-cluster", all])
        .args(["--initial-cluster-token", "punctual"])
        .args(["--auto-compaction-mode", "periodic"])
        .args(["--auto-compaction-retention", "1h"])
        .env("ETCD_UNSUPPORTED_ARCH", "arm64")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .map_err(|error| format!("{}: {error}", binary.display()))
}
