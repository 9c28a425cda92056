//! `warpfire tx`: transactions on a mounted pool, for any program.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::io::Errno;
use serde::Serialize;
use warpfire_mount::{TransactionClient, TransactionReport, TransactionState};
use warpfire_terminal::{Columns, Failure, duration, is_json, path_bytes, path_text, print, print_json};

use super::mount::mounted_pool::{check_whole, mount_around};

mod diff;
mod enter;
mod run;

const EXAMPLES: &str = "\
Examples:
  warpfire tx run --in /mnt -- make install DESTDIR=/mnt
                                  install everything or nothing
  warpfire tx run -- sh -c 'tar xf big.tar && ./migrate'
                                  in a directory on a mounted pool
  warpfire tx run -- sh           try things: there, 'warpfire tx diff' lists
                                  the changes, and 'exit 1' drops them
  warpfire tx begin --in /mnt     print an id and a directory to work in
  warpfire tx diff --in /mnt 7    list the changes of transaction 7
  warpfire tx commit --in /mnt 7
  warpfire tx list --in /mnt

Exit codes besides those of every command:
  75   a conflict: others have changed data that the transaction read; nothing
       was committed: repeat the work in a new transaction
'tx run' ends with the code of the program if that is not 0. If a signal ended the program, the code is \
128 plus the number of the signal. Other codes of 'tx run':
  125  the transaction could not begin, commit or become durable, as the message
       says; or the program left processes behind that still ran after five
       seconds, and nothing was committed
  126  the program cannot be executed
  127  the program does not exist

For an ordinary user 'tx run' makes a user namespace with this user and this group alone: there, files of \
others belong to 'nobody', set-user-id programs do not change the user, and no file can be given to another \
group. In the directory of 'tx begin' nothing of that applies.

A transaction sees the pool as it was when the transaction began, and its own changes. A transaction from \
'tx begin' is aborted when it has been idle for an hour ('mount --tx-timeout' sets another time). A \
transaction from 'tx run' ends with that command, however the command ends.

'tx run' forwards INT, QUIT, TERM, HUP, USR1 and USR2 to the program. If the program then ends with 0, the \
transaction is committed. INT and QUIT from a terminal are not forwarded, because the terminal sends them \
to the program itself.";

const DIFF_HELP: &str = "\
Each line shows a changed name and the differences of its file:
  created  /new/file  (file, 12 KiB)
  deleted  /old
  renamed  /from -> /to
  linked   /b  (another name of /a)
  changed  /file  (20 bytes at 4,096, size 4,096 -> 4,116, time)
  changed  /file2  (mode 0644 -> 0600, attributes user.note)

The transaction is compared with the pool as it was when the transaction began. Changes that others have \
committed since are not listed, and neither are conflicts with them. A deleted name is listed by its old \
path, all else by its new path. The entries of a renamed directory are not listed. Up to 64 KiB of a file \
are compared byte by byte; beyond that, rewritten bytes count as changed. Times of a directory that the \
filesystem itself sets are not listed.

Examples:
  warpfire tx diff --in /mnt 7
  warpfire tx diff             inside 'tx run', or if one transaction is open
  warpfire tx diff --json 7 | jq '.[].path'";

// Arguments of `warpfire tx`.
#[derive(clap::Args, Debug)]
#[command(after_help = EXAMPLES, subcommand_required = true)]
pub struct Args {
    /// The command.
    #[command(subcommand)]
    verb: TxCommand,
}

// The mounted pool.
#[derive(clap::Args, Debug)]
struct MountArg {
    /// A directory on the mounted pool [default: the current directory].
    #[arg(long = "in", value_name = "DIRECTORY")]
    directory: Option<PathBuf>,
}

// One transaction of a mounted pool.
#[derive(clap::Args, Debug)]
struct TransactionArg {
    #[command(flatten)]
    mount: MountArg,
    /// Id of the transaction.
    id: u64,
}

// The commands.
#[derive(clap::Subcommand, Debug)]
#[command(defer = true)]
enum TxCommand {
    /// Run a program in a transaction; commit if it succeeds, abort if it fails.
    ///
    /// File locks of the program (flock, fcntl) do not exclude programs outside of the transaction.
    Run {
        #[command(flatten)]
        mount: MountArg,
        /// Return only after the commit is durable.
        #[arg(long)]
        durable: bool,
        /// The program and its arguments. It starts in the current directory, and the transaction takes the
        /// place of the mounted pool.
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        program: Vec<OsString>,
    },
    /// Begin a transaction; print its id and the directory to work in.
    Begin {
        #[command(flatten)]
        mount: MountArg,
    },
    /// Commit a transaction: all its changes become visible at once.
    Commit {
        #[command(flatten)]
        transaction: TransactionArg,
        /// Return only after the commit is durable.
        #[arg(long)]
        durable: bool,
    },
    /// Abort a transaction: drop all its changes.
    Abort {
        #[command(flatten)]
        transaction: TransactionArg,
    },
    /// List your open transactions; as root, those of all users.
    List {
        #[command(flatten)]
        mount: MountArg,
    },
    /// Show the state of a transaction.
    Status {
        #[command(flatten)]
        transaction: TransactionArg,
    },
    /// List the changes of a transaction: one line for each path, in order.
    #[command(after_help = DIFF_HELP)]
    Diff {
        #[command(flatten)]
        mount: MountArg,
        /// Id of the transaction [default: the one of the view around the directory, or the only open one].
        id: Option<u64>,
    },
    /// Internal: started by `run`, executes the program.
    #[command(hide = true)]
    Enter(enter::Args),
}

/// A transaction, as JSON.
#[derive(Serialize)]
struct TransactionOutput {
    /// Its id on this mount.
    id: u64,
    /// `open`, `ending`, `committed`, `conflict`, `aborted` or `not durable`.
    state: &'static str,
    /// The number of the user that has begun it.
    uid: u32,
    /// The process that it ends with; `null` for one of `tx begin`.
    pid: Option<u32>,
    /// Seconds since its last request.
    idle_seconds: u32,
    /// The directory of its view.
    path: String,
    /// The bytes of a path that is no UTF-8, in base64.
    #[serde(skip_serializing_if = "Option::is_none")]
    path_bytes: Option<String>,
}

impl From<TransactionReport> for TransactionOutput {
    fn from(report: TransactionReport) -> Self {
        let TransactionReport { id, uid, pid, idle_seconds, path, .. } = report;
        let (path, path_bytes) = (path_text(&path), path_bytes(&path));
        TransactionOutput { id, state: state(report.state), uid, pid, idle_seconds, path, path_bytes }
    }
}

fn state(state: TransactionState) -> &'static str {
    match state {
        TransactionState::Open => "open",
        TransactionState::Ending => "ending",
        TransactionState::Committed => "committed",
        TransactionState::Conflict => "conflict",
        TransactionState::Aborted => "aborted",
        TransactionState::NotDurable => "not durable",
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode, Failure> {
    match &args.verb {
        TxCommand::Run { mount, durable, program } => return run::run(&mount.open()?, program, *durable),
        TxCommand::Enter(args) => return Err(enter::enter(args)),
        TxCommand::Begin { mount } => show_begun(mount.open()?.begin()?),
        TxCommand::Commit { transaction, durable } => {
            transaction.mount.open()?.commit(transaction.id, *durable)?;
            show_ended(transaction.id, TransactionState::Committed)
        }
        TxCommand::Abort { transaction } => {
            transaction.mount.open()?.about(transaction.id, |control| control.abort(transaction.id))?;
            show_ended(transaction.id, TransactionState::Aborted)
        }
        TxCommand::List { mount } => show_list(mount.open()?.list()?),
        TxCommand::Diff { mount, id } => diff::run(&mount.open()?, *id),
        TxCommand::Status { transaction } => {
            let report =
                transaction.mount.open()?.about(transaction.id, |control| control.status(transaction.id))?;
            show_list(vec![report])
        }
    }?;
    Ok(ExitCode::SUCCESS)
}

/// A mounted pool, and the connection to its server.
struct MountedPool {
    directory: PathBuf,
    control: TransactionClient,
}

/// Tries of [`transact`]. Each conflict means that somebody else has committed.
const TRIES: u32 = 16;

/// Runs `work` in a transaction of the pool that is mounted at a directory, and commits. `work` gets the
/// directory of the view. After a conflict it runs again, in a new transaction. Inside of a view `work` is a
/// part of the transaction there.
///
/// # Errors
/// Those of `work`; a conflict in each of many tries; the transaction cannot begin or commit; the mount shows
/// a part of its pool.
pub fn transact<T>(mountpoint: &Path, work: impl FnMut(&Path) -> Result<T, Failure>) -> Result<T, Failure> {
    transact_with(mountpoint, TRIES, work)
}

/// As [`transact`], for work that cannot be repeated: a conflict is a failure.
///
/// # Errors
/// As `transact`.
pub fn transact_once<T>(
    mountpoint: &Path,
    work: impl FnMut(&Path) -> Result<T, Failure>,
) -> Result<T, Failure> {
    transact_with(mountpoint, 1, work)
}

fn transact_with<T>(
    mountpoint: &Path,
    tries_max: u32,
    mut work: impl FnMut(&Path) -> Result<T, Failure>,
) -> Result<T, Failure> {
    check_whole(mountpoint)?;
    let control = TransactionClient::open(mountpoint).map_err(|error| Failure::local(mountpoint, &error))?;
    let mounted = MountedPool { directory: mountpoint.to_path_buf(), control };
    let mut tries = 0;
    loop {
        let begun = match mounted.control.begin(true) {
            Err(error) if error_number(&error) == Some(Errno::NOTTY) => return work(mountpoint),
            begun => begun.map_err(|error| mounted.not_begun(&error))?,
        };
        let abort = |_: &Failure| {
            // Fails if the server has ended; then the transaction has ended too.
            let _ = mounted.control.abort(begun.id);
        };
        let done = work(&begun.path).inspect_err(abort)?;
        tries += 1;
        match mounted.commit(begun.id, false) {
            Err(failure) if failure.is_conflict() && tries < tries_max => {}
            Err(failure) if failure.is_conflict() => return Err(failure),
            committed => return committed.inspect_err(abort).map(|()| done),
        }
    }
}

impl MountArg {
    fn open(&self) -> Result<MountedPool, Failure> {
        let near = self.directory.as_deref().unwrap_or(Path::new("."));
        let directory = mount_around(near).ok_or_else(|| {
            let failure = Failure::new(format_args!("no pool is mounted at {}", near.display()));
            failure.hint("name a directory on a mounted pool with --in")
        })?;
        check_whole(&directory)?;
        let control =
            TransactionClient::open(&directory).map_err(|error| Failure::local(&directory, &error))?;
        Ok(MountedPool { directory, control })
    }
}

impl MountedPool {
    fn begin(&self) -> Result<TransactionReport, Failure> {
        self.control.begin(false).map_err(|error| self.not_begun(&error))
    }

    fn list(&self) -> Result<Vec<TransactionReport>, Failure> {
        self.control.list().map_err(|error| self.not_begun(&error))
    }

    /// Commits; a conflict is a failure.
    fn commit(&self, id: u64, durable: bool) -> Result<(), Failure> {
        let report = self.about(id, |control| control.commit(id, durable))?;
        match report.state {
            TransactionState::Committed => return Ok(()),
            TransactionState::NotDurable => {
                let failure = Failure::new(format_args!(
                    "transaction {id} is committed but not durable, because the pool has failed"
                ));
                return Err(failure.hint("see 'warpfire status'"));
            }
            _ => {}
        }
        let (call, path) = (&report.call, report.path.display());
        let failure = Failure::conflict(format_args!(
            "transaction {id} conflicts: '{call}' of {path} would now answer differently; nothing has changed"
        ));
        Err(failure.of_path(report.path).hint("repeat the work in a new transaction"))
    }

    /// Sends a request about one transaction, and explains an error.
    fn about(
        &self,
        id: u64,
        ask: impl FnOnce(&TransactionClient) -> io::Result<TransactionReport>,
    ) -> Result<TransactionReport, Failure> {
        ask(&self.control).map_err(|error| match error_number(&error) {
            Some(Errno::NOENT) => self.no_such(id),
            Some(Errno::BUSY) => {
                Failure::new(format_args!("transaction {id} is in use and was not committed"))
                    .hint("close the files of its view and leave its directories, then try again")
            }
            _ => Failure::new(format_args!("transaction {id} has been aborted: {error}")),
        })
    }

    fn no_such(&self, id: u64) -> Failure {
        Failure::new(format_args!("you have no transaction {id}, or it has ended"))
            .hint("'warpfire tx list' shows the open ones")
    }

    fn not_begun(&self, error: &io::Error) -> Failure {
        let directory = self.directory.display();
        match error_number(error) {
            Some(Errno::NOTTY) => Failure::new(format_args!(
                "{directory} is the view of a transaction; transactions are not nested"
            ))
            .hint("run the command outside of the view"),
            Some(Errno::ROFS) => Failure::new(format_args!("{directory} is mounted read-only"))
                .hint("mount the pool without --read-only"),
            Some(Errno::AGAIN) => Failure::new(format_args!("too many transactions are open on {directory}"))
                .hint("'warpfire tx list' shows them; commit or abort some"),
            Some(Errno::DQUOT) => Failure::new(format_args!(
                "this user has too many transactions open on {directory}"
            ))
            .hint("'warpfire tx list' shows them; commit or abort some, and close files in ended ones"),
            _ => Failure::new(format_args!("{directory}: cannot begin a transaction: {error}")),
        }
    }
}

fn error_number(error: &io::Error) -> Option<Errno> {
    error.raw_os_error().map(Errno::from_raw_os_error)
}

fn show_begun(report: TransactionReport) -> Result<(), Failure> {
    if is_json() {
        return print_json(&TransactionOutput::from(report));
    }
    print(format!("{} {}\n", report.id, report.path.display()))
}

/// The end of a transaction, as JSON.
#[derive(Serialize)]
struct TransactionEnd {
    /// Its id on this mount.
    id: u64,
    /// `committed` or `aborted`.
    state: &'static str,
}

fn show_ended(id: u64, ended: TransactionState) -> Result<(), Failure> {
    if is_json() { print_json(&TransactionEnd { id, state: state(ended) }) } else { Ok(()) }
}

fn show_list(reports: Vec<TransactionReport>) -> Result<(), Failure> {
    let shown: Vec<TransactionOutput> = reports.into_iter().map(TransactionOutput::from).collect();
    if is_json() {
        return shown.iter().try_for_each(print_json);
    }
    if shown.is_empty() {
        return print("no transaction is open\n");
    }
    let mut columns = Columns::new(&["view", "id", "state", "user", "process", "idle"]);
    for transaction in shown {
        let process = transaction.pid.map_or_else(|| "-".to_owned(), |pid| pid.to_string());
        let idle = duration(u64::from(transaction.idle_seconds) * 1_000_000_000);
        columns.row([
            transaction.path,
            transaction.id.to_string(),
            transaction.state.to_owned(),
            transaction.uid.to_string(),
            process,
            idle,
        ]);
    }
    print(columns.to_string())
}
