/* Before the Python inside starts: which one it is, so that it finds its own packages, in a virtual environment too. */
#include <stdlib.h>
#include <wchar.h>

static void pdla_which_python(void)
{
    static int done;
    if (done || Py_IsInitialized()) return;
    done = 1;
    const char *asked = getenv("PDLA_PYTHON");
    Py_SetProgramName(asked && *asked ? Py_DecodeLocale(asked, NULL) : PDLA_PYTHON);
}
