#ifndef COPPERFS_KEEPER_H
#define COPPERFS_KEEPER_H

/* The name by which the program is the keeper. */
#define KEEPER "copperfs-keeper"

int keeper_main(int argc, char **argv);

#endif
