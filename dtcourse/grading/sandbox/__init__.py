"""The sandbox: somebody else's code on ranks that can do nothing but compute and talk to the grader.

jail         what confines a process: what it sees, what it may ask of the kernel, how much of everything it gets
filter       the kernel's own list of what a jailed process may not even ask for
keeper       the warm process from which ranks are forked, each into its jail, and that ends them
wire         what may come out: frames of plain data and plain tensors, and nothing that could run code
validate     what a rank says, held against what it may say
rank, group  in the jail: answers requests; the process group whose every call goes to the grader
harness      which of the course's modules the rank needs for one request, as texts
scribe       in the grader: writes down what one rank asked for
collectives  in the grader: what the library's collectives give
relay        in the grader: matches messages, hands them over, sees who waits for whom
clusters     `SandboxedClusters`, in the place of `dtcourse.grading.submission.Clusters`

The verdict rests on what the grader itself gave, relayed and saw. What a rank says of itself, such as lines, labels and
what it printed, is shown and never counted.
"""
