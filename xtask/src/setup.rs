//! `cargo xtask setup`: installs what the tests need on this machine.
//!
//! It installs the Debian packages of the servers, of the programs that ask and stall servers, and
//! of tmux, whose screen the tests read. It looks for the files of the packages and does not ask
//! the package manager. So servers that were installed in another way count too. The testkit starts
//! the servers, and `interop` installs the packages of other languages.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::command::passes;
use crate::{Failure, interop, no_arguments};

/// A requirement of a server on this machine, and its Debian package.
#[derive(Debug)]
struct Requirement {
    package: &'static str,
    needs: Needs,
}

/// How to see that a requirement is met.
#[derive(Debug)]
enum Needs {
    /// A program on the search path, or in one of the folders of [`program_folders`].
    Program(&'static str),
    /// A file at a fixed place.
    File(&'static str),
    /// Modules of Python, which Debian keeps apart from it.
    PythonModules(&'static str),
}

const REQUIREMENTS: &[Requirement] = &[
    Requirement { package: "redis-server", needs: Needs::Program("redis-server") },
    Requirement { package: "redis-tools", needs: Needs::Program("redis-cli") },
    Requirement { package: "etcd-server", needs: Needs::Program("etcd") },
    Requirement { package: "etcd-client", needs: Needs::Program("etcdctl") },
    Requirement { package: "zookeeper", needs: Needs::File("/usr/share/java/zookeeper.jar") },
    Requirement {
        package: "libslf4j-java",
        needs: Needs::File("/usr/share/java/slf4j-simple.jar"),
    },
    Requirement { package: "libnetty-java", needs: Needs::File("/usr/share/java/netty-codec.jar") },
    Requirement { package: "default-jre-headless", needs: Needs::Program("java") },
    Requirement { package: "default-jdk-headless", needs: Needs::Program("javac") },
    Requirement {
        package: "libcurator-recipes-java",
        needs: Needs::File("/usr/share/java/curator-recipes.jar"),
    },
    Requirement { package: "postgresql", needs: Needs::Program("initdb") },
    Requirement { package: "postgresql", needs: Needs::Program("postgres") },
    Requirement { package: "postgresql-client", needs: Needs::Program("psql") },
    Requirement { package: "pgbouncer", needs: Needs::Program("pgbouncer") },
    Requirement { package: "openssl", needs: Needs::Program("openssl") },
    Requirement { package: "python3", needs: Needs::Program("python3") },
    Requirement { package: "python3-venv", needs: Needs::PythonModules("ensurepip, venv") },
    Requirement { package: "systemd", needs: Needs::Program("systemd-analyze") },
    Requirement { package: "strace", needs: Needs::Program("strace") },
    Requirement { package: "tmux", needs: Needs::Program("tmux") },
    Requirement { package: "nodejs", needs: Needs::Program("node") },
    Requirement { package: "npm", needs: Needs::Program("npm") },
];

/// Where Debian keeps the programs of PostgreSQL, a folder for each version.
const POSTGRES_FOLDER: &str = "/usr/lib/postgresql";

/// How long to wait for another apt-get, for example an unattended upgrade.
const LOCK_TIMEOUT: &str = "DPkg::Lock::Timeout=300";

/// Runs the command.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    no_arguments("setup", arguments)?;
    install_packages()?;
    interop::install()
}

fn install_packages() -> Result<(), Failure> {
    let missing = missing_packages();
    if missing.is_empty() {
        println!("setup: all servers are installed");
        return Ok(());
    }
    let prefix = root_prefix().ok_or_else(|| cannot_install(&missing))?;
    println!("setup: installing {}", missing.join(" "));
    apt_get(&prefix, &["update"], &missing)?;
    let mut install = vec!["install", "-y", "--no-install-recommends"];
    install.extend(&missing);
    apt_get(&prefix, &install, &missing)?;
    let still_missing = missing_packages();
    if still_missing.is_empty() {
        println!("setup: done; the tests use ports and folders of their own, so services that");
        println!("setup: Debian started with these packages may be stopped or left alone");
        return Ok(());
    }
    let list = still_missing.join(", ");
    let message = format!("apt-get succeeded, but files of these packages are missing: {list}");
    Err(Failure::Message(message))
}

fn missing_packages() -> Vec<&'static str> {
    let mut packages = Vec::new();
    for requirement in REQUIREMENTS {
        if !requirement.needs.is_met() && !packages.contains(&requirement.package) {
            packages.push(requirement.package);
        }
    }
    packages
}

impl Needs {
    fn is_met(&self) -> bool {
        match self {
            Needs::File(path) => Path::new(path).is_file(),
            Needs::PythonModules(names) => {
                let mut python = Command::new("python3");
                python.args(["-c", &format!("import {names}")]);
                python.stdout(Stdio::null()).stderr(Stdio::null());
                passes(&mut python).is_ok_and(|passed| passed)
            }
            Needs::Program(name) => {
                program_folders().iter().any(|folder| is_program(&folder.join(name)))
            }
        }
    }
}

/// The search path, the folders that a user's search path may lack, and those of PostgreSQL.
fn program_folders() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders: Vec<PathBuf> = std::env::split_paths(&path).collect();
    folders.extend(["/usr/local/bin", "/usr/bin", "/usr/sbin"].map(PathBuf::from));
    let versions = fs::read_dir(POSTGRES_FOLDER).into_iter().flatten().flatten();
    folders.extend(versions.map(|version| version.path().join("bin")));
    folders
}

fn is_program(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
}

/// The words to put before a command so that it runs as root; `None` when that is not possible.
fn root_prefix() -> Option<Vec<&'static str>> {
    if fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0) {
        return Some(Vec::new());
    }
    let mut sudo = Command::new("sudo");
    sudo.args(["-n", "true"]).stdout(Stdio::null()).stderr(Stdio::null());
    passes(&mut sudo).is_ok_and(|passed| passed).then(|| vec!["sudo", "-n"])
}

fn apt_get(prefix: &[&str], arguments: &[&str], missing: &[&str]) -> Result<(), Failure> {
    // `env` rather than `Command::env`, because sudo does not pass the variable on.
    let mut words = prefix.to_vec();
    words.extend(["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-o", LOCK_TIMEOUT]);
    words.extend(arguments);
    match passes(Command::new(words[0]).args(&words[1..])) {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::Message(format!(
            "`{}` failed; run this by hand to see why:\n\n    {}",
            words.join(" "),
            install_command(missing),
        ))),
        Err(error) => Err(Failure::Message(format!("cannot run `{}`: {error}", words[0]))),
    }
}

fn cannot_install(missing: &[&str]) -> Failure {
    Failure::Message(format!(
        "not root, and `sudo -n` does not work; run this as root, then try again:\n\n    {}",
        install_command(missing),
    ))
}

fn install_command(missing: &[&str]) -> String {
    format!(
        "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y \
         --no-install-recommends {}",
        missing.join(" "),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_on_the_search_path_is_found() {
        assert!(Needs::Program("sh").is_met());
        assert!(!Needs::Program("no-such-program-of-leasehold").is_met());
        assert!(Needs::PythonModules("os, sys").is_met());
        assert!(!Needs::PythonModules("no_such_module_of_leasehold").is_met());
    }

    #[test]
    fn folder_is_no_program() {
        assert!(!is_program(Path::new("/usr")));
    }

    #[test]
    fn message_without_root_has_the_exact_command() {
        let Failure::Message(message) = cannot_install(&["etcd-server", "zookeeper"]) else {
            panic!("setup must say what to do");
        };
        let command = "apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y \
                       --no-install-recommends etcd-server zookeeper";
        assert!(message.ends_with(command), "{message}");
    }
}
