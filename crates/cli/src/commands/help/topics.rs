//! The pages of `warpfire help TOPIC`.

/// A page on a subject that several commands share.
pub struct Topic {
    /// The word after `warpfire help`.
    pub name: &'static str,
    /// The subject, as a heading.
    pub title: &'static str,
    /// The page, wrapped for a terminal of 80 columns.
    pub text: &'static str,
}

/// The topics, in the order of the list.
pub const TOPICS: &[Topic] = &[
    Topic { name: "naming", title: "How pools and files are named", text: NAMING },
    Topic { name: "exit-codes", title: "What the exit codes mean", text: EXIT_CODES },
    Topic { name: "sizes", title: "How sizes are written", text: SIZES },
    Topic { name: "times", title: "How moments and ages are written", text: TIMES },
    Topic { name: "transactions", title: "All changes or none", text: TRANSACTIONS },
    Topic { name: "slices", title: "Files as lists of slices", text: SLICES },
    Topic { name: "damage", title: "When a device fails or data is damaged", text: DAMAGE },
    Topic { name: "space", title: "What takes space, and how much is free", text: SPACE },
    Topic { name: "json", title: "Output for programs", text: JSON },
];

const NAMING: &str = "\
A pool is named by its devices or image files, separated by commas, in any
order. A directory stands for all *.img files in it. A missing device is left
out.

  a.img                          a pool of one image file
  /dev/nvme0n1,/dev/nvme1n1      a pool of two devices
  pool                           the *.img files of the directory 'pool'
  LABEL=photos                   the pool of this name, wherever its devices are
  UUID=6f1c...                   the pool of this number

The last two search all block devices, and the files and directories that
--search and WARPFIRE_DEVICES name (there separated by colons). 'warpfire scan'
lists the pools. In fstab, write label= and uuid=, and -o search=PATH.

A file in a pool is POOL:/path. The first ':/' ends the name of the pool.

  pool:/photos/1.jpg             a file
  pool:/  or  pool:              the root
  :/photos                       in the pool that WARPFIRE_POOL names
  local:./odd:/name              a local path, although it holds ':/'

Commands that only read take the name of a pool alone as its root: 'warpfire ls
pool'. Commands that change files do not.

A path on a mounted pool, such as /mnt/photos, names a file in it too.

A name of a file is any bytes but '/' and NUL, at most 255 of them. On a
terminal odd names are shown as a shell reads them ($'line\\nbreak'), so they
can be copied. Elsewhere they are printed as they are; 'find --print0' ends
them with NUL. With --json a name that is no UTF-8 has its bytes in base64.
";

const EXIT_CODES: &str = "\
  0    success; also if the reader of the output has closed the pipe
  1    the command failed, or failed for some of its files
  2    the command line is wrong, or a confirmation is missing
  3    the pool could not be opened: a device is missing, damaged, in use, or
       belongs to another pool
  75   a conflict: others have changed data that the transaction read; nothing
       was committed

'warpfire fsck' and 'warpfire scrub' use the codes of fsck(8): 0 nothing is
damaged, 1 all damage is repaired, 4 damage is left, 8 the pool could not be
checked.

'warpfire tx run' ends with the code of its program, or with 125 if the
transaction failed, 126 if the program cannot be executed, 127 if it does not
exist.
";

const SIZES: &str = "\
A size is a number of bytes, or a number with a unit. Units are powers of 1024:

  4096       bytes
  512K       524,288 bytes; also KiB
  1.5G       also GiB; M and T likewise
  64MB       with a B the units are powers of 1000: 64,000,000 bytes

The commands print sizes in the units that they read: '1.5 GiB'. 'ls -l', 'du'
and 'df' print bytes, and with -h sizes with units. With --json a size is
always a number of bytes.
";

const TIMES: &str = "\
A moment on the command line is one of

  2026-11-21T08:29:31Z           RFC 3339, with Z or an offset such as +01:00
  2026-11-21 08:29:31            a date and a time of day, in the local zone
  2026-11-21                     its first second
  @1795163371                    seconds since 1970

'warpfire find' takes ages too: 90s, 15m, 12h, 7d, 2w before now.

Times are printed in the local zone, which TZ or /etc/localtime names. With
--utc they are printed and read in UTC. With --json they are RFC 3339 in UTC
with nanoseconds, whatever the zone.
";

const TRANSACTIONS: &str = "\
A transaction is a set of changes that are committed whole or not at all. A
program sees its own changes inside; others see them after the commit.

  warpfire tx run --in /mnt -- make install DESTDIR=/mnt
  warpfire tx run --in /mnt -- sh
  warpfire tx diff               what would change
  warpfire tx begin --in /mnt    for several programs: 'tx commit' or 'tx abort'

A commit fails only if one of the calls of the transaction would now answer
differently, because others have changed what it read. Then nothing has
changed, the exit code is 75, and the work can be done again in a new
transaction.

Each 'mv', 'ln' and 'slice' command is one transaction. A commit is durable
within the sync interval of the mount, or at once with --durable.

'warpfire help tx' has the commands.
";

const SLICES: &str = "\
A file is a list of slices: pointers to bytes on flash. Copying, joining,
cutting and reordering files moves no data, at any byte.

  warpfire cp pool:/film pool:/again                   a copy by pointers
  warpfire slice concat pool:/a pool:/b pool:/whole    join
  warpfire slice cut --from 1G --len 20M pool:/film    remove a range
  warpfire slice paste --len 5M --insert 1G pool:/intro pool:/film

Bytes that several files share take space once. They are freed when the last
file that has them is removed.

On a mounted pool, cp and every program that calls copy_file_range(2) copy
pointers too.
";

const DAMAGE: &str = "\
A pool of k data and m parity devices survives the loss of any m devices. Every
read verifies checksums: it never returns wrong bytes.

  warpfire status pool           which devices are missing or have failed
  warpfire fsck pool             reads everything, and changes nothing
  warpfire scrub pool            reads everything, and repairs from parity

A device is missing: name the others and go on. The pool is degraded. If the
missing devices could go on alone, as half of a mirror can, the pool opens for
writing only after 'scrub --degraded' or with 'mount --degraded', for good. A
device that is back gets what it missed by itself.

A block is damaged: a read rebuilds it from parity. Scrub regularly, so that
damage is found while there is parity left.

Damage is beyond parity: the files that it hits give an error where they are
hit, and all others are whole. Bring back missing devices, or restore these
files from a backup.

A crash needs no check: the pool opens in a state that a program could have
seen, no older than the last sync that returned.
";

const SPACE: &str = "\
'warpfire df' and 'warpfire status' show the same figures as df(1) on a mount:

  used        what files, tables and open transactions need
  available   what can be written
  the rest    a reserve for deletion and cleaning, so that a full pool can
              always be emptied

Parity is not in these figures. Bytes of removed files do not count as used,
even where they still wait for cleaning ('garbage' in 'warpfire status'). Bytes
that several files share count once in 'df', and for each file in 'du'.

Image files keep the space of removed files on their disk, because writing it
again is faster than taking it anew. 'warpfire trim' gives it back.

Devices may differ in size. The part of a device for which too few others are
as large is not used. Small devices leave less for files, because each pool
keeps some zones for itself: 'mkfs' says how much is left.
";

const JSON: &str = "\
Every command takes --json. Then each line of stdout is one document, a JSON
object with a version. A list is a document for each element. Each line of
stderr is an error or a note:

  {\"version\":1,\"error\":{\"kind\":\"not_found\",\"errno\":2,\"message\":\"/x: no such
  file or directory\",\"hint\":null,\"path\":\"/x\",\"exit_code\":1}}

Sizes are numbers of bytes, and times are RFC 3339 in UTC with nanoseconds. A
name that is no UTF-8 has its bytes in base64: name_bytes, path_bytes.

The file docs/JSON.md of the source lists the documents of every command.
";
