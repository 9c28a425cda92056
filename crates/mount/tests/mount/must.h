/* Ends the program with its line and the condition that does not hold. */
#include <stdio.h>
#include <stdlib.h>

#define MUST(condition)                                                                              \
    do {                                                                                             \
        if (!(condition)) {                                                                          \
            fprintf(stderr, "line %d: %s\n", __LINE__, #condition);                                  \
            exit(1);                                                                                 \
        }                                                                                            \
    } while (0)
